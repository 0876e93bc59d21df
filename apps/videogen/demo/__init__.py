"""The outside world of `mulligan demo videogen`: providers that fail on demand."""
