"""The checkpoint service: a catalogue of what jobs saved, whether it is whole, and how to take it back."""
