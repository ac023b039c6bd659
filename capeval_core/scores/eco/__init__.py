"""ECO, a paper in four modules: formulas, members of the ensemble, ranking of a set, and the metric."""
