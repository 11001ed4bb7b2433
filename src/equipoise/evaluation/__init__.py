"""How good ranked lists are: metrics, evaluation, comparison, leave-one-out."""
