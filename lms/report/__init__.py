"""All that is shown: the report of a step, how far a plan is, figures."""
