"""Guards: circuit breakers, retry budgets, limits and gates that make jobs wait."""
