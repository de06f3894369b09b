"""Add model packages over REST, each by a job whose child process runs the commands of `app.models`."""
