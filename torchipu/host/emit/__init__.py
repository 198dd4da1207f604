"""Host steps that records of several families emit: chains, copies, products, convolutions."""
