"""What files and models may not make us do."""
