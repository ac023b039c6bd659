"""The commands of `capeval`, one module each with `run(arguments) -> exit status`."""
