"""Zero-shot classification: which of some texts fits a photo best, by CLIP."""
