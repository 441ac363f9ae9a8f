"""`python -m gppvae` is the command `gppvae`."""

from gppvae.cli import main

if __name__ == "__main__":
    main()
