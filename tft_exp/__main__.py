"""`python -m tft_exp` is `tft-exp`."""

from tft_exp.cli import main

main()
