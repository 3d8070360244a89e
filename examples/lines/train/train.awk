# A training program in another language that only prints lines: logistic regression on points of a plane, by gradient descent.
#     awk -f train.awk -v steps=60 -v batch=32 -v seed=0
BEGIN {
    srand(seed)
    for (step = 1; step <= steps; step++) {
        loss = 0; gx = 0; gy = 0; gb = 0
        for (sample = 0; sample < batch * 200; sample++) {      # 200 passes, or a step would be over before it can be timed
            x = 2 * rand() - 1; y = 2 * rand() - 1; label = (x + 2 * y > 0.5)
            p = 1 / (1 + exp(-(wx * x + wy * y + b)))
            loss -= label ? log(p + 1e-12) : log(1 - p + 1e-12)
            gx += (p - label) * x; gy += (p - label) * y; gb += p - label
        }
        rate = 2 / (batch * 200)
        wx -= rate * gx; wy -= rate * gy; b -= rate * gb
        if (step % 5 == 0) {
            printf "step %d/%d  loss %.4f\n", step, steps, loss / (batch * 200)
            fflush()                                            # or awk keeps its lines back until there are 4 KiB of them
        }
    }
}
