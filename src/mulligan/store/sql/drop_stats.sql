DELETE FROM {p}stat WHERE minute > :after AND minute < :before
