"""`python -m tft_exp` is `tft-exp`."""

from tft_exp.cli import main

# A fresh process of a pool imports this module again, under another name.
if __name__ == "__main__":
    main()
