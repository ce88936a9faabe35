"""The numerics laboratory: how near to Shampoo's exact roots are the cheap ones?"""
