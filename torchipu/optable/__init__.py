"""What a record of an operator may say, the table of all records, and the ops of ours that both sides must know."""
