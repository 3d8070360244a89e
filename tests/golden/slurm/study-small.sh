#!/bin/bash
#SBATCH --job-name=slipway-digits-0badcafe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --mem=0
#SBATCH --time=00:35:00
#SBATCH --output=/nfs/results/digits/logs/slipway-digits-0badcafe-%j.log
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --exclusive
#SBATCH --requeue

cd /home/me/slipway || exit
export SLIPWAY_SUBMISSION=slipway-digits-0badcafe
exec /home/me/slipway/.venv/bin/python -m snakemake --resources nodes=2
