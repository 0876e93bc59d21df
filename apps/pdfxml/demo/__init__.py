"""The outside world of `mulligan demo pdfxml`: a gateway that fails on demand."""
