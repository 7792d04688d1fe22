/* A user's first program: asks for a device that does not exist, and is told so. */
#include <stdio.h>

#include <sdr.h>
#include <sdr_mr.h>

int main(void) {
    struct sdr_dev_attr attr = {0};
    attr.num_channels = 1;
    struct sdr_context* context = sdr_context_create("no-such-device", &attr);
    if (context != NULL) {
        fprintf(stderr, "a device that does not exist was opened\n");
        return 1;
    }
    return 0;
}
