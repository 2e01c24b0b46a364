"""What an operator asks of history on the command line: options, questions, and how answers look."""
