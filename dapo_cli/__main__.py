"""`python -m dapo_cli`, the same as `dapo`; torch.distributed.run starts workers this way."""

from dapo_cli.cli.app import main

if __name__ == "__main__":
    main()
