SELECT min(minute) FROM {p}stat WHERE minute >= :since AND minute < :until
