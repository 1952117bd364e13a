# cmake -DSYMBOL=name -DINPUTS=a.js|b.css -DOUTPUT=name.c -P embed.cmake: the bytes of files as a list in C,
# of struct bag_embedded.
set(texts "")
set(list "")
string(REPLACE "|" ";" inputs "${INPUTS}")
set(number 0)
foreach(input ${inputs})
    get_filename_component(name ${input} NAME)
    file(READ ${input} bytes HEX)
    string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND texts "static const char text_${number}[] = {\n${bytes}0};\n")
    string(APPEND list "    {\"${name}\", text_${number}, sizeof text_${number} - 1},\n")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"proto/embedded.h\"\n\n${texts}\nextern const struct bag_embedded ${SYMBOL}[];\n"
    "const struct bag_embedded ${SYMBOL}[] = {\n${list}    {0}};\n")
