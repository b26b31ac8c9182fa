"""`python -m tpo` is `tpo`."""

from tpo.cli import main

if __name__ == "__main__":
    main()
