// This line alone sets the module's path. `go get` needs one that is the repository's address, as in
// github.com/OWNER/bagserve/proto/clients/go. Until it has one, a program's go.mod says: replace bagserve => FOLDER
module bagserve

go 1.19
