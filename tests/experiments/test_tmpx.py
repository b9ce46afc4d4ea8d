import yaml, pytest
from pathlib import Path
from bcls.experiments import SweepSettings, run_sweep, read_results
from tests.training.factories import captions_of, make_data
from tests.experiments.factories import SPLITS
ROOT=Path('configs/flickr8k/sweeps').resolve()
@pytest.mark.parametrize('name',['sgraf','paper-exact','alpha-models','words'])
def test_x(tmp_path,name):
    folder=make_data(tmp_path/'data',rows=captions_of(24,3,splits=SPLITS),regions=36)
    content=yaml.safe_load((ROOT/f'{name}.yaml').read_text())
    def small(x):
        x=dict(x)
        if isinstance(x.get('base'),str): x['base']=yaml.safe_load((ROOT/x['base']).read_text())
        return x
    content=small(content)
    runs={}
    for k,v in content['runs'].items():
        if 'ensemble' not in v:
            v=small(v); v.update({'features':'made','labels':'wordllama','word_threshold':1,'batch':8,'precision':'no','epochs':5})
            nm=v['base']['model']['name']
            m={**(v.get('model') or {}), 'width':8}
            if nm in('saf','sgr'): m.update({'similarity_width':8})
            if nm in ('saf','sgr','vsepp') and m.get('name')!='dual' and m.get('text')!='minilm': m['word_width']=8
            v['model']=m
        runs[k]=v
    if name=='paper-exact': runs={k:v for k,v in runs.items() if k.startswith(('SAF','SGR','VSE'))}
    content['runs']=runs; content['seeds']=1; content.pop('judged_choice',None)
    if 'search' in content: content['search']['budget']=1; content['search']['epochs']=4
    if 'grid' in content: content['grid']={'loss.alpha':[0.2]}
    f=tmp_path/'a.yaml'; f.write_text(yaml.safe_dump(content,sort_keys=False))
    out=run_sweep(f,SweepSettings(str(folder),str(tmp_path/'out'),device='cpu',final=name!='alpha-models'))
    print('RESULT',name,out.planned,out.finished,out.failed)
    for l in read_results(tmp_path/'out')[1]:
        if l['phase']=='run': print('ROW  ',l['name'],round(l['test']['rsum'],1) if 'test' in l else l.get('failed'))
