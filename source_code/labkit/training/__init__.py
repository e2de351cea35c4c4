"""What a step script stands on: the command line, the run and its record, the digits, the network."""
