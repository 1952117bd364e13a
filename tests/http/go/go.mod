module cases

go 1.19

require bagserve v0.0.0

replace bagserve => ../../../proto/clients/go
