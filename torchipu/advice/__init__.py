"""What would make a program better: changes nearby are compiled, and what the machine model says of them is told."""
