"""Arguments and results of models: how a call's arguments are read, and what nested values hold."""
