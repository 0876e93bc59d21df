"""The rules. Pure and synchronous: `now` and the random source are arguments, nothing here touches the world."""
