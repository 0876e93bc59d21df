"""Real errors, labelled by hand with their public source, and the scorer of the classifier."""
