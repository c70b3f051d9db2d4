"""Options, output, errors and checks that all commands share."""
