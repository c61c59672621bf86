"""The commands of `dynamo`, one file each."""
