# cmake -DINPUT=openapi.json -DOUTPUT=openapi.c -P embed.cmake: the file's bytes as a C array.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"proto/v2_documents.h\"\n\nconst char bag_openapi[] = {\n${bytes}0};\n"
    "const size_t bag_openapi_bytes = sizeof bag_openapi - 1;\n")
