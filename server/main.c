/* The program's entry. */
#include <stdio.h>

int main(void)
{
    puts("bagserve");
    return 0;
}
