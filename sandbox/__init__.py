"""Turn a policy and a command into a confined process and an honest verdict."""
