SELECT {lease} FROM {p}job WHERE state = 'running' AND worker = :worker
