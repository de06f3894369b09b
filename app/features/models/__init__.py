"""Adding model packages over REST: each by a job, whose child process runs the commands of the models' room."""
