"""The `tidegate` command line; needs the extra `tidegate[cli]`."""
