module exec-sandbox/agent

go 1.19

require golang.org/x/sys v0.28.0
