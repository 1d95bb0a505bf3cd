"""What every other room stands on; it imports no other room.

models        requests, offers, resources and leases as values
run_models    a run's request, the facts about its nodes and its outcome as values
quota         an account's quotas as values
bucket        a prefix of a bucket, and whose keys open it, as values
data_address  what `--data` may name beside a path here, as values
sink          where results are kept besides this computer, as values
errors        every error that gpuops raises, with its exit code
provider      the contract that a provisioner fulfils
context       what a command is given: settings, ledger, clock, signals, reporter
reporting     protocols of what a command prints and how it shows progress
account_variables  the variables by which each provider knows an account
home          gpuops' own folder, and the mark in it of all that its user rents
settings      flags, gpuops.toml, environment and .env, and what each may say
config_trust  which gpuops.toml the user trusts
platform      what differs between Linux, macOS and Windows
processes     processes on this computer: identity, start, end
signals       Ctrl-C, SIGTERM and SIGHUP as one command sees them
parallel      the same work on several nodes at once
timings       where a command's time goes, and whose it is
polling       the clock, and waits with a deadline
file_lock     locks between processes
files         small files of gpuops' own, written whole
safe_paths    which names of files that a node tells may be used
safe_folder   files whose paths a node has named, written without following links
safe_open     opens one of them in an open folder: no link, nothing but a plain file
git           questions to git that run nothing a repository names
typed_paths   paths that a user types
names         names that a user types, matched with known ones
format        numbers, times, lists and tables as text for people
"""
