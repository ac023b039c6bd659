"""The cards of weights repositories, so that `capeval publish` has them where the package is installed."""
