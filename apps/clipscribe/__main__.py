"""`mulligan demo clipscribe`: the service with an emulated video host and model."""

from mulligan.apps.clipscribe.demo.main import main

if __name__ == "__main__":
    main()
