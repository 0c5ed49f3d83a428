"""What a step must give, in float64; what rounding may do to it; whether a runtime gives it."""
