SELECT :now
