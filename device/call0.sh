# bash call0.sh : unpack, and measure training steps
T0=$(date +%s); C=$PWD/.carry; say(){ echo "$(( $(date +%s)-T0 )) s: $*" | tee -a $OUT/times0; }
command -v git || { mkdir -p /tmp/bin; gunzip -c $C/git.gz > /tmp/bin/git; chmod +x /tmp/bin/git; export PATH=$PATH:/tmp/bin; }
df -h /dev/shm /tmp | tail -2; free -g | sed -n 2p; nproc; ls /usr/local/nvidia/bin 2>/dev/null; command -v nvidia-cuda-mps-control
mkdir -p /tmp/site /tmp/data /tmp/repo /tmp/kit; cp $C/* /tmp/kit/
(tar xJf $C/site.tar.xz -C /tmp/site) & 
tar xJf $C/tofu.tar.xz -C /tmp/data; tar xf $C/git.tar -C /tmp/repo; cd /tmp/repo; git config --global --add safe.directory '*'; git checkout -q -f ${REV:-HEAD} -- . ; git status --short | head -3; git log --oneline | head -2
say unpacking
M=/usr/local/nvidia/bin/nvidia-cuda-mps-control; command -v nvidia-cuda-mps-control >/dev/null && M=nvidia-cuda-mps-control
if [ -n "$(command -v $M)" ]; then mkdir -p /tmp/mps; CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps setsid $M -d && A="6,1 12,1" || echo "no MPS"; fi
timeout 75 python3 $C/probe.py 1,0 6,0 $A 2>&1 | grep -v Warn; cat /tmp/mps/*.log 2>/dev/null | tail -3
wait; say end
