"""The commands of the command line, one module each; what needs server code comes in as a plug-in instead."""
