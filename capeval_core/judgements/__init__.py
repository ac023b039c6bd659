"""Human judgements: the data sets of the field, their protocols, and how well scores agree with people."""
