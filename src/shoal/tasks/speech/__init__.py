"""Speech to text: sound files to the features of Whisper, and its tokens to words."""
