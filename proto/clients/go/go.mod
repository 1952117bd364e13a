module bagserve

go 1.19
