#!/bin/bash
#SBATCH --job-name=slipway-digits-0badcafe
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=24
#SBATCH --mem=64000M
#SBATCH --gres=gpu:4
#SBATCH --time=3-02:05:00
#SBATCH --partition=gpu
#SBATCH --account='proj 7'
#SBATCH --qos=long
#SBATCH --constraint='a100&ib'
#SBATCH --output='/nfs/50%% done/it'"'"'s/logs/x-%j.log'
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --requeue
#SBATCH --reservation=thursdays
#SBATCH --licenses=scratch:1

cd '/home/me/my checkout' || exit
export SLIPWAY_SUBMISSION=slipway-digits-0badcafe
module load gcc/12
export PATH="$HOME/bin:$PATH"
exec '/opt/py thon' -m snakemake --configfile '/home/me/a $HOME `x`.yaml'
