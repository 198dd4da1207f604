"""Which part of a model goes to which IPU: units with their costs, a search over cuts, trials, and what is proposed."""
